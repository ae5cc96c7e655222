"""What a run read -> a file that proves it to somebody without the shards.

certificate_file.py  the bytes of a certificate
certify.py           a step of a run, or a document -> its certificate
check.py             a certificate and a root -> what is proven, or what is wrong
"""
